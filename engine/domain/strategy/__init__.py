"""The adaptive strategy: which kernels to build on, which idea to try next, and why. Pure and deterministic given the journal.

A linear Thompson sampler (Agrawal and Goyal, "Thompson Sampling for Contextual Bandits with Linear Payoffs", ICML 2013) over
pairs of parent kernel and idea:

- ``evidence`` reads parents, tried ideas and open ideas from the state.
- ``regression`` is the posterior over the gain of an idea, given its author's prediction, what the same idea gained on other
  parents, and the history of the parent.
- ``choice`` draws from the posterior and takes the best pair; it compares this with asking for new ideas. Where one idea
  prevails among the latest trials, the search restarts from the kernel left behind with the greatest expected improvement per
  kernel (Jones, Schonlau and Welch, J. Global Optimization 1998).
- ``from_latest`` goes on from the latest kernel where what an idea gains depends on the kernel and losses are recovered.
- ``reasons`` words the figures behind a decision.
- ``draws`` are the random numbers: a function of the session's seed and the position in the journal, so replay and resume
  are exact.
"""
