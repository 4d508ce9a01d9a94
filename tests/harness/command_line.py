"""The command line as a function."""

from typer.testing import CliRunner

from relibra.cli.app import app


def relibra(*arguments: object, status: int = 0) -> str:
    """Run `relibra` with these arguments and return what it prints; raise its error."""
    result = CliRunner().invoke(app, [str(each) for each in arguments], env={"COLUMNS": "80"})
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == status, result.output
    return result.stdout
