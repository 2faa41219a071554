"""One engine for `looksam compare` and `looksam reproduce`: it trains, tunes, times and stores runs.

In the order in which an experiment uses it: ``tuner`` lists the runs that are needed, ``pool`` trains those that are
missing (through ``records`` and ``runner``), ``runs`` stores them, ``timer`` measures step times, and ``statistics``
decides which differences are significant. ``naming`` turns the names of rows into settings and labels.
"""
