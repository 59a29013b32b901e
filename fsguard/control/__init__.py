"""The control socket between the daemon and the commands.

protocol   one JSON object a line (pure)
server     the daemon's end (trio): who asks is told by the kernel
client     the commands' end (standard library only)
registry   where live mounts are noted, and how a path finds its mount
listener   the socket file: private, never in the way of the next daemon
address    socket paths of any length
places     the directories where notes and sockets lie
mountinfo  what the kernel says is mounted
params     reading a request's parameters, for handlers

Import the modules, not this package: a command must start without trio.
"""
