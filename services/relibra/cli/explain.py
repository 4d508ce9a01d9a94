"""`relibra explain`: why a step was planned and executed as it was, in sentences."""

from rich.padding import Padding
from rich.text import Text

from relibra.cli.output import AsJson, open_console, print_json
from relibra.cli.status_client import DEFAULT_URL, AttemptNumber, JobId, StatusClient, StatusUrl, Step


def explain(
    job_id: JobId, step: Step, attempt: AttemptNumber = None, url: StatusUrl = DEFAULT_URL, as_json: AsJson = False
) -> None:
    """Explain why a step has this placement and these replicas, or why it has no plan."""
    said = StatusClient(url).get_of_job(job_id, "steps", step, "explain", attempt=attempt)
    if as_json:
        print_json(said)
        return
    console = open_console()
    console.print(Text(f"{said['headline'][:1].upper()}{said['headline'][1:]}"))
    for part in ("placement", "replicas", "execution"):
        if said[part]:
            console.print(f"\n[bold]{part}[/]")
        for sentence in said[part]:
            console.print(Padding(Text(sentence), (0, 0, 0, 2), expand=False))
