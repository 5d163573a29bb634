"""The RQ adapter: queue messages, the worker that takes them, live text, and the embedded server.

Redis only notifies. Nothing in it is needed to finish a run: the dispatcher notifies again from the
database. Import the module that you need: ``notify`` and ``worker`` load RQ, the others do not.
"""
