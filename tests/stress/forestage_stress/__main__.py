"""Kills, stops and starves ranks, groups and the daemon in the middle of loads, round after round.

Every rank that lives must end with the right bytes, in time, and the daemon must have nothing left.
"""

import argparse
import os
import pathlib
import random
import sys

# gRPC's fork handlers warn about every subprocess, and none of ours uses gRPC after a fork.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

from forestage_stress.plan import draw_round  # noqa: E402
from forestage_stress.run import Failure, run  # noqa: E402
from forestage_stress.world import tensor_names  # noqa: E402

EXAMPLES = """
examples:
  ./dev stress                          300 rounds, about 10 minutes
  ./dev stress --minutes 60             as many as fit
  ./dev stress --seed 7 --round 42      one round again, as it was planned
  ./dev stress --preset asan            with the programs of another preset
"""


def positive(text):
    value = float(text)
    if value <= 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def parse(arguments):
    parser = argparse.ArgumentParser(
        prog="./dev stress",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, help="how many (300)")
    parser.add_argument("--minutes", type=positive, help="as many rounds as begin within this time")
    parser.add_argument("--seed", type=int, help="of everything that is drawn (a new one)")
    parser.add_argument("--round", type=int, help="only this one of the seed's rounds")
    parser.add_argument("--preset", default="dev", help="whose programs are run (dev)")
    parser.add_argument("--show", action="store_true", help="print the plan of --round only")
    parser.add_argument("--check", action="store_true", help=argparse.SUPPRESS)
    parsed = parser.parse_args(arguments)
    if parsed.rounds is not None and parsed.rounds < 1:
        parser.error("--rounds is at least 1")
    if parsed.show and (parsed.round is None or parsed.seed is None):
        parser.error("--show needs --seed and --round")
    return parsed


def main(arguments):
    options = parse(arguments)
    if options.check:
        print(options.preset)
        return 0
    if options.show:
        print(draw_round(options.seed, options.round, tensor_names()))
        return 0
    seed = random.SystemRandom().randrange(1 << 31) if options.seed is None else options.seed
    if options.round is not None:
        rounds = range(options.round, options.round + 1)
    elif options.rounds is None and options.minutes is not None:
        rounds = range(1, 1 << 31)
    else:
        rounds = range(1, (options.rounds or 300) + 1)
    build_dir = pathlib.Path("build") / options.preset
    print(f"seed {seed}", flush=True)
    try:
        tally = run(
            build_dir.absolute(),
            seed=seed,
            rounds=rounds,
            seconds=None if options.minutes is None else 60 * options.minutes,
            keep=build_dir / "stress",
        )
    except Failure as failure:
        print(f"\n{failure}\n", file=sys.stderr)
        return 1
    print(tally.table())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
