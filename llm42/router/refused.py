"""A request that is refused, by the name of a parameter."""


class Refused(Exception):
    """``param`` names the parameter, the message says what would be right; ``status`` is HTTP's."""

    def __init__(self, param: str, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.param = param
        self.status = status
