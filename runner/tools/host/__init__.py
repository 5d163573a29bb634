"""The tool host: the one small child of a worker that starts, watches and ends every tool process.

    worker ──socket── host ──fork── keeper ──fork, exec── the tool's process and its descendants

The worker hands the host one end of a socket for each call. The host forks a keeper for it, and the
keeper starts the tool, collects its output, and ends it with everything that it started: at the end
of the call, at its timeout, when the worker closes its end (cancel, death) and when the host dies.
``serve``, ``keeper`` and ``processes`` run in the host: they import only the standard library, and
little of it, because every call forks that interpreter.
"""
