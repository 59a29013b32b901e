"""fsguard: many agents, one tree, no lost work.

A workspace is mounted through a passthrough FUSE filesystem. From the outside in:

    cli          one module per command; talks to the daemon over a Unix socket
    daemon       composition root: the only module that knows all the others
    fuse         the filesystem (pyfuse3); knows files, handles and callers
    attribution  which task a process belongs to (cgroup, environment, ancestry)
    control      the socket: protocol, server, client
    dispatch     carries events to the guard and its decisions back
    core         the guard itself: pure, no clock, no process, no file

Imports go down only; DESIGN.md beside this file says why and what must stay true.
"""

__version__ = "0.1.0"
