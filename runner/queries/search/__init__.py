"""Full text search over everything that runs said and did.

The index holds words, no text. On SQLite it is a file beside the database, on Postgres tables in it.
A search first adds what the index lacks (``indexer``).
"""
