"""The start-up audit: may these kernels carry the guarantee? If not, nothing is served.

Causal masking alone proves nothing, so it is measured, on full logits as bits. Read :mod:`probes` (what goes into a
pass), :mod:`rig` (how it is run), :mod:`cached` (the window cache), :mod:`run` (the audit), :mod:`isolate` (what
was it, if something moved) and :mod:`report`.
"""
