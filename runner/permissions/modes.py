"""The rules that each ``mode`` stands for; ``runner rules`` lists them.

``read_only`` reads. ``workspace_write`` also changes files in the workspace and runs every command
that can be read, but asks before one that deletes, rewrites history, changes permissions, publishes,
or hides what it does. ``full_access`` asks nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from runner.permissions.decisions import Policy
from runner.permissions.rules import READING, UNANALYZABLE, WRITING
from runner.permissions.values import Rule

Mode = Literal["read_only", "workspace_write", "full_access"]

ORIGIN = "mode"

_DELETES = "it deletes"
_REWRITES = "it rewrites history, or drops work that is not committed"
_PERMISSIONS = "it changes permissions, or runs as another user"
_PUBLISHES = "it publishes, or changes what others see"
_SYSTEM = "it reaches beyond the workspace into the system"
_HIDES = "it hides what it runs, or where it writes"
_HOOKS = "git runs commands that are written there"
# What a mode asks about, the worst first.
DANGERS = (_DELETES, _SYSTEM, _PERMISSIONS, _PUBLISHES, _REWRITES, _HOOKS, _HIDES)

# A program alone, or with the beginning of its arguments; " *" is added to each.
_COMMANDS = {
    _DELETES: """
        rm, rmdir, unlink, shred, truncate, dd, mkfs*, wipefs, find *-delete*, rsync *--delete*,
        docker rm, docker rmi, docker * rm, docker * prune, podman rm, podman rmi, podman * rm,
        podman * prune, kubectl delete, helm uninstall,
        terraform destroy, tofu destroy, pulumi destroy, dropdb, redis-cli *flush*, aws s3 rm""",
    _PERMISSIONS: """
        chmod, chown, chgrp, setfacl, setcap, chattr, chflags, sudo, doas, su, pkexec, passwd,
        usermod, useradd, userdel""",
    _PUBLISHES: """
        npm pu, npm pub*, npm unp*, npm dep*, npm dist*, npm ow*, npm ac, npm acc*, yarn publish,
        yarn npm publish, yarn workspace * publish, yarn workspaces *publish*, pnpm publish, lerna publish,
        bun publish, cargo publish, cargo yank, cargo owner, cargo release, twine,
        * -m twine, uv publish, poetry publish, hatch publish, flit publish, pdm publish, gem pu*,
        gem y*, gem ow*, mvn *deploy*, mvnw *deploy*, *gradle* *publish*, semantic-release, goreleaser,
        hg pus*, dotnet nuget push, docker push,
        docker *--push*, docker * push, podman push, helm push, gh release, gh pr, gh issue, gh repo,
        gh api, gh workflow, gh secret, gh variable, gh gist, gh auth, glab, kubectl apply,
        kubectl create, kubectl replace, kubectl patch, kubectl edit, kubectl scale, kubectl rollout,
        kubectl exec, kubectl drain, helm install, helm upgrade, terraform apply, tofu apply,
        pulumi up, ansible-playbook, gcloud *deploy*, vercel, netlify deploy, firebase deploy,
        fly deploy, wrangler, heroku, aws s3 cp, aws s3 mv, aws s3 sync, scp, sftp, rsync *:*, mail""",
    _SYSTEM: """
        kill, pkill, killall, systemctl, service, launchctl, shutdown, reboot, mount, umount,
        crontab, at, iptables, nft, sysctl, apt, apt-get, dnf, yum, brew, ssh, nc, ncat, socat""",
}
# What follows "git"; deny and ask patterns see it without git's own options too (git -C folder push).
_GIT = {
    _DELETES: """
        clean, rm, branch *-d, branch *-D, branch *--delete, tag *-d, tag *--delete,
        worktree remove, worktree prune, remote remove, remote rm, submodule deinit, stash drop,
        stash clear, update-ref, notes remove""",
    _REWRITES: """
        reset *--hard, reset *--merge, reset *--keep, reset *--soft, reset *--mixed, rebase,
        commit *--amend, filter-branch, filter-repo, replace, checkout *--, checkout *-f,
        checkout *--force, checkout *., checkout *-B, checkout *--overlay,
        checkout *--pathspec-from-file*, checkout-index, restore, switch *-f, switch *--force,
        switch *--force-create, switch *--discard-changes, switch *-C, branch *-f, branch *--force,
        branch *-M, branch *-C, tag *-f, tag *--force, reflog expire, reflog delete, gc *--prune*,
        prune, repack *-d, read-tree, symbolic-ref, fast-import, pull *--rebase*, pull *-r,
        pull *--force, pull *-f, pull * +*, fetch *-f, fetch *--force, fetch * +*, merge *--abort,
        cherry-pick *--abort, revert *--abort, am *--abort, submodule *-f, submodule *--force,
        lfs migrate, lfs prune, mv *-f, mv *--force""",
    _PUBLISHES: """
        push, send-pack, http-push, subtree push, send-email, svn dcommit, p4 submit, lfs push""",
    _SYSTEM: "config, credential, remote add, remote set-url",
}


def rules_of(mode: Mode, tools: Sequence[str]) -> tuple[Rule, ...]:
    """Return the rules that a mode stands for, for a job that has these tools."""
    if mode == "full_access":
        return tuple(Rule("allow", tool, origin=ORIGIN) for tool in dict.fromkeys(tools))
    rules = []
    if READING.intersection(tools):
        rules.append(Rule("allow", "Read", origin=ORIGIN))
    if mode == "read_only":
        return tuple(rules)
    if WRITING.intersection(tools) or "Bash" in tools:
        rules.append(Rule("ask", "Edit(.git)", _HOOKS, ORIGIN))
        rules.append(Rule("allow", "Edit(/**)", origin=ORIGIN))
    if "Bash" in tools:
        for program, table in (("", _COMMANDS), ("git ", _GIT)):
            for why, listed in table.items():
                for entry in listed.split(","):
                    text = program + " ".join(entry.split())
                    text = text if text.endswith("*") else f"{text} *"
                    rules.append(Rule("ask", f"Bash({text})", why, ORIGIN))
        rules.append(Rule("ask", f"Bash({UNANALYZABLE})", _HIDES, ORIGIN))
        rules.append(Rule("allow", "Bash(**)", origin=ORIGIN))
    return tuple(rules)


def permission_mode(policy: Policy) -> str:
    """Return the permission mode of Claude Code that comes nearest to a run's rules."""
    of_mode = [rule for rule in policy.rules if rule.origin == ORIGIN]
    allowed = {rule.text for rule in of_mode if rule.effect == "allow"}
    if not allowed:
        return "default" if policy.default == "ask" else "dontAsk"
    if allowed == {"Read"}:
        return "plan"
    return "acceptEdits" if len(of_mode) > len(allowed) else "bypassPermissions"
