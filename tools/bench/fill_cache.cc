// fill_cache pread|populate|advice THREADS PIECE_KIB FILE...
//
// Brings files into the page cache in one of the ways that loaders use, with THREADS pieces at a
// time, and prints how many seconds that took. One program for all of them, so that what `./dev
// bench` compares is the kernel's work and not that of an interpreter.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <sys/mman.h>
#include <sys/stat.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace {

struct File {
  std::string path;
  int descriptor = -1;
  char* address = nullptr;
  uint64_t bytes = 0;
};

struct Piece {
  const File* file = nullptr;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

[[noreturn]] void Die(const std::string& what) {
  std::fprintf(stderr, "fill_cache: %s: %s\n", what.c_str(), std::strerror(errno));
  std::exit(1);
}

File Open(const std::string& path) {
  File file;
  file.path = path;
  file.descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file.descriptor < 0) Die(path);
  struct stat status = {};
  if (fstat(file.descriptor, &status) != 0) Die(path);
  file.bytes = static_cast<uint64_t>(status.st_size);
  void* address = mmap(nullptr, file.bytes, PROT_READ, MAP_SHARED, file.descriptor, 0);
  if (address == MAP_FAILED) Die(path);
  file.address = static_cast<char*>(address);
  return file;
}

// Each thread has a buffer of one piece.
using Filler = std::function<void(const Piece&, std::vector<char>&)>;

void ReadPiece(const Piece& piece, std::vector<char>& buffer) {
  for (uint64_t done = 0; done < piece.bytes;) {
    const ssize_t count = pread(piece.file->descriptor, buffer.data(), piece.bytes - done,
                                static_cast<off_t>(piece.offset + done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) Die(piece.file->path);
    done += static_cast<uint64_t>(count);
  }
}

void PopulatePiece(const Piece& piece, std::vector<char>&) {
  if (madvise(piece.file->address + piece.offset, piece.bytes, MADV_POPULATE_READ) != 0)
    Die(piece.file->path + ": MADV_POPULATE_READ");
}

// A piece is in flight until its last byte is there, which the read of one byte waits for.
void AdvisePiece(const Piece& piece, std::vector<char>& buffer) {
  const int error = posix_fadvise(piece.file->descriptor, static_cast<off_t>(piece.offset),
                                  static_cast<off_t>(piece.bytes), POSIX_FADV_WILLNEED);
  if (error != 0) {
    errno = error;
    Die(piece.file->path + ": POSIX_FADV_WILLNEED");
  }
  if (pread(piece.file->descriptor, buffer.data(), 1,
            static_cast<off_t>(piece.offset + piece.bytes - 1)) != 1) {
    Die(piece.file->path);
  }
}

void FillAll(const std::vector<Piece>& pieces, unsigned threads, const Filler& fill,
             uint64_t piece_bytes) {
  std::atomic<size_t> next{0};
  std::vector<std::thread> running;
  for (unsigned i = 0; i < threads; ++i) {
    running.emplace_back([&] {
      std::vector<char> buffer(piece_bytes);
      for (size_t index; (index = next++) < pieces.size();) fill(pieces[index], buffer);
    });
  }
  for (std::thread& thread : running) thread.join();
}

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string, Filler> fillers = {
      {"pread", ReadPiece}, {"populate", PopulatePiece}, {"advice", AdvisePiece}};
  const auto filler = argc > 1 ? fillers.find(argv[1]) : fillers.end();
  const unsigned threads = argc > 2 ? static_cast<unsigned>(std::atoi(argv[2])) : 0;
  const uint64_t piece_bytes = argc > 3 ? std::strtoull(argv[3], nullptr, 10) * 1024 : 0;
  if (argc < 5 || filler == fillers.end() || threads == 0 || threads > 1024 || piece_bytes == 0) {
    std::fprintf(stderr, "fill_cache pread|populate|advice THREADS PIECE_KIB FILE...\n");
    return 2;
  }
  const auto begun = std::chrono::steady_clock::now();
  std::vector<File> files;
  for (int i = 4; i < argc; ++i) files.push_back(Open(argv[i]));
  std::vector<Piece> pieces;
  for (const File& file : files) {
    for (uint64_t offset = 0; offset < file.bytes; offset += piece_bytes)
      pieces.push_back({&file, offset, std::min(piece_bytes, file.bytes - offset)});
  }
  FillAll(pieces, threads, filler->second, piece_bytes);
  std::printf("%.6f\n",
              std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count());
  return 0;
}
