import subprocess

from benchmarks.peers.checkouts import CHECKOUTS, Checkout, check_out
from benchmarks.peers.run import PEERS


def test_only_the_folders_asked_for_are_checked_out_and_again_is_fine(tmp_path):
    published = tmp_path / "published"
    for name in ("planner/code.py", "engine/huge.py", "LICENSE"):
        (published / name).parent.mkdir(parents=True, exist_ok=True)
        (published / name).write_text(name)
    git = ["git", "-C", str(published), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "publish"], ["tag", "v1"]):
        subprocess.run([*git, *command], check=True)
    checkout = Checkout(address=published.as_uri(), version="v1", folders=("planner",))
    for _ in range(2):
        check_out(tmp_path / "peers", {"one": checkout})
    found = {
        path.name for path in (tmp_path / "peers" / "one").rglob("*") if ".git" not in path.parts if path.is_file()
    }
    assert found == {"code.py", "LICENSE"}


def test_every_peer_has_a_checkout_that_holds_its_file():
    for peer in PEERS:
        folders = CHECKOUTS[peer.checkout].folders
        assert "/" not in peer.file or any(peer.file.startswith(f"{folder}/") for folder in folders), peer.name
