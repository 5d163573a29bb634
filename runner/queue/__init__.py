"""The RQ adapter: wake-ups, the worker that takes them, live text, and the embedded server.

Redis is a doorbell here. Nothing in it is needed to finish a run: what is lost is rung again by the
dispatcher, from the database. Import the module that is needed: ``doorbell``, ``worker`` and
``presence`` load RQ, the others do not.
"""
