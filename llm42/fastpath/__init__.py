"""The fast path: vLLM as it comes, one engine per Serve replica, one stream per router.

A drafter that nobody needs to trust: token ids in, token ids out. It also serves ordinary requests.
"""
