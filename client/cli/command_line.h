// The command line of `forestage`: which command, with which options.
#pragma once

namespace forestage {

// Parses, runs the command and returns the exit code of the process. Call once, from main, before
// anything starts a thread.
int RunCommandLine(int argc, char** argv);

}  // namespace forestage
