"""The replay pool: a pure function from token sequences to canonical next tokens.

Read in this order: :mod:`passes` (what one pass is), :mod:`pages` (the window cache), :mod:`jobs` and
:mod:`scheduler` (which windows go into the next pass; no torch, no ray), :mod:`model` (the
model), :mod:`engine` (the pass loop and its asyncio face), :mod:`deployment` (the Serve replica around it).
"""
