// forestage: the command line tool. docs/cli.md is its reference.
#include "client/cli/command_line.h"

int main(int argc, char** argv) { return forestage::RunCommandLine(argc, argv); }
