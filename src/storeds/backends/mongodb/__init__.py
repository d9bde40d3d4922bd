"""The MongoDB engine: a native store is one collection, with a document for each record.

Start with ``reading.py``, then ``documents.py`` and ``sink.py``. ``client.py`` connects, ``retry.py`` repeats.
"""
