"""Progress is told once, and briefly."""

from ray.serve.schema import ApplicationStatus, ApplicationStatusOverview, DeploymentStatusOverview

from llm42.cli.watch import changes

TRACEBACK = "The deployment failed to start 3 times in a row. Error:\n  File ...\n\nRuntimeError: no such model\n"


def application(status: str, message: str = "", **deployments: tuple[dict[str, int], str]) -> ApplicationStatusOverview:
    return ApplicationStatusOverview(
        status=ApplicationStatus(status),
        message=message,
        last_deployed_time_s=0,
        deployments={
            name: DeploymentStatusOverview(
                status="UPDATING", status_trigger="DEPLOYING", replica_states=states, message=reason
            )
            for name, (states, reason) in deployments.items()
        },
    )


def test_a_line_for_each_change_and_none_without() -> None:
    seen: dict[str, str] = {}
    assert changes({}, seen) == []
    starting = {"llm42": application("DEPLOYING", Router=({"STARTING": 1}, ""))}
    assert changes(starting, seen) == ["llm42: DEPLOYING", "llm42/Router: 1 starting"]
    assert changes(starting, seen) == []
    running = {"llm42": application("DEPLOYING", Router=({"RUNNING": 1}, ""))}
    assert changes(running, seen) == ["llm42/Router: 1 running"]


def test_of_a_traceback_the_first_line_and_the_last() -> None:
    failed = {"llm42": application("DEPLOY_FAILED", "bad", Verifier=({}, TRACEBACK))}
    assert changes(failed, {}) == [
        "llm42: DEPLOY_FAILED bad",
        "llm42/Verifier: waiting The deployment failed to start 3 times in a row. Error: ... "
        "RuntimeError: no such model",
    ]
