"""Plans for more machines than one has: a simulation that runs the real protocol and the real replay scheduler.

Read in this order: :mod:`step_times` (what a model costs), :mod:`workload`, :mod:`fleet` and :mod:`drift` (what is
planned for), :mod:`simulation` with :mod:`router`, :mod:`fast_path` and :mod:`verifier` (what runs), :mod:`report`,
:mod:`advice` and :mod:`sweep` (what is said of it). Imports no ray, vllm or torch.
"""
