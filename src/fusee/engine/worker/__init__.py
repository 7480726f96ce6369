"""The worker: claim, execute, report. Import from the modules: a child process needs only a few of them."""
