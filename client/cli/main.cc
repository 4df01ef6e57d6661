// forestage: the command line tool. docs/cli.md is its reference.
#include "client/cli/command_line.h"
#include "client/cli/termination_signals.h"

int main(int argc, char** argv) {
  // Before anything else: what comes from now on is seen by the command, which says so.
  forestage::BlockWatchedSignals();
  return forestage::RunCommandLine(argc, argv);
}
