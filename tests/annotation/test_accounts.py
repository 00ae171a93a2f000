"""Accounts: an invitation works once and not for ever, a session ends, secrets are not kept."""

from __future__ import annotations

import pytest
from sqlalchemy import select

from deixis.annotation import schema
from deixis.annotation.accounts import INVITATION_SECONDS, LINK_SECONDS, SESSION_SECONDS, Accounts
from deixis.errors import DeixisError
from tests.annotation.conftest import Clock, MakeBench


def test_an_invitation_makes_one_worker_of_its_role(make_bench: MakeBench, clock: Clock) -> None:
    bench = make_bench(images=1)
    accounts = Accounts(bench.engine, clock)
    secret = accounts.invite("reviewer")
    account = accounts.accept(secret, "ann")
    assert account.role == "reviewer"
    assert bench.worker_number("ann") == account.worker
    with pytest.raises(DeixisError, match="used or expired"):
        accounts.accept(secret, "bob")
    late = accounts.invite()
    clock.now += INVITATION_SECONDS + 1
    with pytest.raises(DeixisError, match="used or expired"):
        accounts.accept(late, "bob")
    with pytest.raises(DeixisError, match="not a role"):
        accounts.invite("emperor")
    taken = accounts.invite()
    with pytest.raises(DeixisError, match="already"):
        accounts.accept(taken, "ann")
    assert accounts.accept(taken, "bob").name == "bob"


def test_a_session_knows_its_worker_until_it_ends(make_bench: MakeBench, clock: Clock) -> None:
    bench = make_bench(images=1)
    accounts = Accounts(bench.engine, clock)
    worker = bench.add_worker("ann")
    session, other = accounts.open_session(worker), accounts.open_session(worker)
    account = accounts.account_of(session)
    assert account is not None
    assert (account.worker, account.name) == (worker, "ann")
    accounts.close_session(session)
    assert accounts.account_of(session) is None
    assert accounts.account_of("nonsense") is None
    clock.now += SESSION_SECONDS + 1
    assert accounts.account_of(other) is None


def test_a_workers_sign_in_link_works_until_another_is_made(make_bench: MakeBench, clock: Clock) -> None:
    bench = make_bench(images=1)
    accounts = Accounts(bench.engine, clock)
    ann = bench.add_worker("ann")
    link = accounts.sign_in_link(ann)
    with pytest.raises(DeixisError, match="used or expired"):
        accounts.accept(link, "bob")
    # It survives lost sessions, a suspension and the re-admission.
    for _ in range(3):
        assert accounts.sign_in(link) == (ann, "ann", "worker")
        clock.now += 0.9 * LINK_SECONDS
    bench.suspend(ann, None, "asleep")
    assert accounts.sign_in(link).worker == ann
    bench.reinstate(ann, None, "awake")
    assert accounts.sign_in(link).worker == ann
    newer = accounts.sign_in_link(ann)
    assert accounts.sign_in(newer).worker == ann
    clock.now += LINK_SECONDS + 1
    for wrong in (link, newer, accounts.invite(), "nonsense"):
        with pytest.raises(DeixisError, match="used or expired"):
            accounts.sign_in(wrong)
    with pytest.raises(DeixisError, match="no worker 7"):
        accounts.sign_in_link(7)


def test_an_administrators_sign_in_link_works_once(make_bench: MakeBench, clock: Clock) -> None:
    bench = make_bench(images=1)
    accounts = Accounts(bench.engine, clock)
    ada = bench.add_worker("ada", "administrator")
    link = accounts.sign_in_link(ada)
    assert accounts.sign_in(link) == (ada, "ada", "administrator")
    late = accounts.sign_in_link(ada)
    clock.now += INVITATION_SECONDS + 1
    for wrong in (link, late):
        with pytest.raises(DeixisError, match="used or expired"):
            accounts.sign_in(wrong)


def test_a_session_lives_on_while_it_is_used(make_bench: MakeBench, clock: Clock) -> None:
    bench = make_bench(images=1)
    accounts = Accounts(bench.engine, clock)
    session = accounts.open_session(bench.add_worker("ann"))
    for _ in range(3):
        clock.now += 0.6 * SESSION_SECONDS
        assert accounts.account_of(session) is not None
    clock.now += SESSION_SECONDS + 1
    assert accounts.account_of(session) is None


def test_no_secret_is_kept(make_bench: MakeBench, clock: Clock) -> None:
    bench = make_bench(images=1)
    accounts = Accounts(bench.engine, clock)
    secrets = [accounts.invite(), accounts.open_session(bench.add_worker("ann"))]
    with schema.reading(bench.engine) as connection:
        kept = [
            str(row) for table in (schema.invitations, schema.sessions) for row in connection.execute(select(table))
        ]
    assert not any(secret in row for secret in secrets for row in kept)
