"""Side by side: fsguard in every mode, the plain directory, and other passthrough filesystems.

    make bench                             # everything, three rounds, a table
    make bench ARGS='-n 1 --only find,untar --json bench.json'

Every round does each workload on each place in turn, so a ratio compares two runs
of the same minute on the same machine.
"""
