"""The engine of ``looksam compare`` and ``looksam reproduce``: it trains, tunes, times and stores.

``runs``: a run, its key and the store of finished runs. ``runner`` trains runs of one program, vmapped or one by one;
``records`` measures them. ``tuner`` selects hyper-parameters, ``timer`` measures step times in one interleaved run,
``pool`` distributes the missing runs over processes, ``side_by_side`` trains and times the rows of ``looksam compare``,
and ``statistics`` has standard errors and significance.
"""
