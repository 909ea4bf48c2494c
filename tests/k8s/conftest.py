"""Each test of an overlay runs for all of them."""

import pytest

from tests.k8s.overlay import SERVES, Overlay, render


@pytest.fixture(params=SERVES)
def overlay(request: pytest.FixtureRequest) -> Overlay:
    return render(request.param)
