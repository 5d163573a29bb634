"""Properties of pure functions are judged by what they find, never by how long an example took."""

from hypothesis import settings

settings.register_profile("core", deadline=None)
settings.load_profile("core")
