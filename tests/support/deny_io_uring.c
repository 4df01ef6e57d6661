// deny_io_uring EPERM|ENOSYS COMMAND [ARGUMENT...]: runs the command with io_uring's system calls
// answered by that errno, as container runtimes' seccomp profiles do.

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

// The same numbers on every architecture.
enum { kIoUringSetup = 425, kIoUringEnter = 426, kIoUringRegister = 427 };

int main(int argc, char** argv) {
  int error = 0;
  if (argc >= 3 && strcmp(argv[1], "EPERM") == 0) error = EPERM;
  if (argc >= 3 && strcmp(argv[1], "ENOSYS") == 0) error = ENOSYS;
  if (error == 0) {
    fprintf(stderr, "usage: deny_io_uring EPERM|ENOSYS COMMAND [ARGUMENT...]\n");
    return 2;
  }
  struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, kIoUringSetup, 0, 2),
      BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, kIoUringRegister, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof(code) / sizeof(code[0]), code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    perror("deny_io_uring: prctl");
    return 2;
  }
  execvp(argv[2], argv + 2);
  perror("deny_io_uring: exec");
  return 2;
}
