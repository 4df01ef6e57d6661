// Columns for people.
#pragma once

#include <string>
#include <vector>

namespace forestage {

// Rows of cells, printed as aligned columns. Not thread-safe.
class TextTable {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };

  explicit TextTable(std::vector<Column> columns);

  // Requires: as many cells as columns. A cell of several lines becomes one, with "; " between
  // them.
  void AddRow(std::vector<std::string> cells);

  // The titles, then the rows; each line ends in a newline and none in a space.
  std::string ToString() const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace forestage
