"""The revision of a session object: it survives copies, and an object of another service has none."""

from __future__ import annotations

import pickle
from uuid import uuid4

from google.adk.sessions.session import Session

from cognizes.engine.adapters.adk.session_service import Revision


def test_a_revision_survives_copies_but_not_json() -> None:
    session = Session(id="s", app_name="shop", user_id="ada")
    revision = Revision(uuid4(), 3, 4)
    revision.put_on(session)
    copies = [session.model_copy(), session.model_copy(deep=True), pickle.loads(pickle.dumps(session))]
    assert [Revision.of(copy) for copy in copies] == [revision] * 3
    assert Revision.of(Session.model_validate_json(session.model_dump_json())) is None


def test_an_object_of_another_service_has_no_revision() -> None:
    assert Revision.of(Session(id="s", app_name="shop", user_id="ada")) is None
