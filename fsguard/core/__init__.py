"""The guard itself: who has seen what, who changed it since, what to say.

Pure: plain values in, decisions out. No file, process, clock or socket is
touched from here, so every rule can be tested with a handful of values.
`Guard` is the only door.
"""
