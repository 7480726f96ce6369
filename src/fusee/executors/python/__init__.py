"""Python handlers: awaited in the worker's loop, called in threads, or called in child processes.

Import from the modules: a child process needs only a few of them.
"""
