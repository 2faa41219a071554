"""One engine for `looksam compare` and `looksam reproduce`: it trains, tunes, times and stores runs.

In the order in which an experiment uses it: ``tuner`` says which runs are needed, ``pool`` trains those that are
missing (``records`` by way of ``runner``), ``runs`` stores them, ``timer`` measures step times, and ``statistics`` says
which differences are significant.
"""
