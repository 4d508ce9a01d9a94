from relibra.agent.homes.replaced_method import replace_method


class Owner:
    def answer(self, question):
        return f"plain {question}"


def test_a_replaced_method_is_put_back():
    owner = Owner()
    restore = replace_method(owner, "answer", lambda question: f"other {question}")
    assert owner.answer("1") == "other 1"
    restore()
    assert owner.answer("1") == "plain 1"
    assert vars(owner) == {}


def test_a_method_of_the_object_itself_is_put_back():
    owner = Owner()
    owner.answer = lambda question: f"own {question}"
    replace_method(owner, "answer", lambda question: f"other {question}")()
    assert owner.answer("1") == "own 1"


def test_a_later_wrapper_of_another_stays_and_reaches_the_plain_method():
    owner = Owner()
    restore = replace_method(owner, "answer", lambda question: f"other {question}")
    ours = owner.answer
    owner.answer = lambda question: f"wrapped {ours(question)}"
    restore()
    assert owner.answer("1") == "wrapped plain 1"
