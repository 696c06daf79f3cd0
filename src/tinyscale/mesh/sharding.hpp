#pragma once
// How an array lies on a mesh, in the notation of the scaling book (chapter 3):
//   "I_x, J"        dim I is cut over mesh axis x, dim J is whole on every device
//   "I_{x,y}"       over two axes, x the slower: block ix * Y + iy
//   "{U_x} I, J"    every device of x holds a summand; the array is their sum
//   "A[I, J] {U_x}" the same as the book writes it
// An axis cuts one dim at most; over the axes that are not named every device holds the same.

#include <cctype>  // isalnum
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <string>
#include <vector>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/shape.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/hardware/network.hpp"
#include "tinyscale/mesh/mesh_axis.hpp"

namespace tinyscale {

struct ShardedDim {
  std::string name;
  std::vector<std::string> axes;  // the slowest first
};

struct Sharding {
  std::vector<std::string> partial;  // axes over which it is still to be summed
  List<ShardedDim> dims;

  std::string text() const;  // as it was parsed
};

namespace detail {

inline std::string joined(const std::vector<std::string>& names) {
  std::string out;
  for (const std::string& name : names) {
    out += (out.empty() ? "" : ",") + name;
  }
  return out;
}

inline std::string subscript(const std::vector<std::string>& axes) {
  return axes.empty() ? "" : axes.size() == 1 ? "_" + axes[0] : "_{" + joined(axes) + "}";
}

struct ShardingParser {
  const std::string& text;
  std::size_t at = 0;

  [[noreturn]] void wrong(const char* right) const {
    const std::string seen =
        at < text.size() ? cat({"'", text[at], "' at place ", at + 1}) : std::string("the end");
    fail({"sharding \"", text, "\": ", seen, "; ", right});
  }
  bool skip(char wanted) {
    while (at < text.size() && text[at] == ' ') {
      ++at;
    }
    const bool found = at < text.size() && text[at] == wanted;
    at += found ? 1 : 0;
    return found;
  }
  std::string word(char also, const char* right) {
    skip('\0');
    const std::size_t first = at;
    while (at < text.size() &&
           (std::isalnum(static_cast<unsigned char>(text[at])) != 0 || text[at] == also)) {
      ++at;
    }
    if (at == first) {
      wrong(right);
    }
    return text.substr(first, at - first);
  }
  std::vector<std::string> axes() {
    const bool several = skip('{');
    std::vector<std::string> names;
    do {
      names.push_back(word('_', "a mesh axis is right, as in I_x, or several as in I_{x,y}"));
    } while (several && skip(','));
    if (several && !skip('}')) {
      wrong("a comma or } is right after an axis, as in I_{x,y}");
    }
    return names;
  }
  void sum(Sharding& out) {
    const char* const right = "a partial sum is written once, in front, as in {U_x} I, J";
    if (!skip('{')) {
      return;
    }
    if (!out.partial.empty() || !skip('U') || !skip('_')) {
      wrong(right);
    }
    out.partial = axes();
    if (!skip('}')) {
      wrong(right);
    }
  }
  Sharding parse() {
    at = text.find('\0');
    if (at < text.size()) {
      fail({"sharding \"", text.substr(0, at), "\": a zero byte at place ", at + 1,
            "; letters and digits are right, and _ , { } [ ]"});
    }
    at = 0;
    Sharding out;
    const bool brackets = text.find('[') < text.size();  // as the book and reports have it
    sum(out);
    skip('\0');
    if (brackets && !skip('[')) {
      const char* const right = "an array's name is right before [, as in A[I_x, J]";
      word('_', right);
      sum(out);
      if (!skip('[')) {
        wrong(right);
      }
    }
    sum(out);
    skip('\0');
    if (at < text.size() && text[at] != ']' && text[at] != '{') {
      do {
        ShardedDim dim;
        dim.name = word('\0', "a dim is right, as in I or I_x");
        if (skip('_')) {
          dim.axes = axes();
        }
        out.dims.push_back(dim);
      } while (skip(','));
    }
    if (brackets && !skip(']')) {
      wrong("a comma or ] is right after a dim, as in A[I_x, J]");
    }
    sum(out);  // the book has it behind: A[I, J] {U_x}
    skip('\0');
    if (at < text.size()) {
      wrong(brackets ? "the end is right after ]" : "a comma is right between dims, as in I_x, J");
    }
    return out;
  }
};

// The machine and where the axes of a mesh lie on it.
struct PlacedMesh {
  Machine machine;
  List<AxisPlacement> axes;

  int devices() const {
    int product = 1;
    for (const AxisPlacement& axis : axes) {
      product *= axis.size;
    }
    return product;
  }
  std::string text() const {
    std::string out = machine.name;
    for (const AxisPlacement& axis : axes) {
      out += cat({", ", axis.name, " ", axis.size});
    }
    return out;
  }
  std::string letters() const {  // of all axes
    std::string out;
    for (std::size_t i = 0; i < axes.size(); ++i) {
      out += static_cast<char>('a' + static_cast<int>(i));
    }
    return out;
  }
};

// Which axes stand where, each a letter ('a' the first of the mesh): [0] those of the partial sum
// in rising order, [d + 1] those that cut dim d.
using AxisPlaces = std::vector<std::string>;

inline std::size_t axis_number(char letter) { return static_cast<std::size_t>(letter - 'a'); }

// The letters of both, in rising order.
inline std::string rising_union(const std::string& a, const std::string& b) {
  std::string out;
  for (const char letter : a + b) {
    std::size_t at = 0;
    while (at < out.size() && out[at] < letter) {
      ++at;
    }
    if (at == out.size() || out[at] != letter) {
      out.insert(at, 1, letter);
    }
  }
  return out;
}

inline std::string without(const std::string& letters, const std::string& gone) {
  std::string out;
  for (const char letter : letters) {
    if (gone.find(letter) == std::string::npos) {
      out += letter;
    }
  }
  return out;
}

inline std::string all_letters(const AxisPlaces& places) {
  std::string out;
  for (const std::string& letters : places) {
    out += letters;
  }
  return out;
}

// Over how many devices the axes of a place go.
inline std::int64_t shard_count(const PlacedMesh& mesh, const std::string& letters) {
  std::int64_t product = 1;
  for (const char letter : letters) {
    product *= mesh.axes[axis_number(letter)].size;
  }
  return product;
}

// The number of a device among them.
inline std::int64_t shard_index(const PlacedMesh& mesh, const std::string& letters, int rank) {
  std::int64_t index = 0;
  for (const char letter : letters) {
    const AxisPlacement& axis = mesh.axes[axis_number(letter)];
    index = index * axis.size + rank / axis.stride % axis.size;
  }
  return index;
}

inline std::vector<std::string> names_of(const PlacedMesh& mesh, const std::string& letters) {
  std::vector<std::string> names;
  for (const char letter : letters) {
    names.push_back(mesh.axes[axis_number(letter)].name);
  }
  return names;
}

inline std::string axes_text(const PlacedMesh& mesh, const std::string& letters) {
  return joined(names_of(mesh, letters));
}

// False when a dim does not divide.
inline bool local_shape_of(const PlacedMesh& mesh, const AxisPlaces& places, Shape& shape) {
  for (int d = 0; d < shape.size(); ++d) {
    const std::int64_t n = shard_count(mesh, places[static_cast<std::size_t>(d) + 1]);
    if (shape[d] % n != 0) {
      return false;
    }
    shape.set(d, shape[d] / n);
  }
  return true;
}

inline std::string letters_of(const PlacedMesh& mesh, const Sharding& sharding,
                              const std::vector<std::string>& names, std::string& used) {
  std::string letters;
  for (const std::string& name : names) {
    const std::string all = mesh.letters();
    std::size_t i = 0;
    while (i < all.size() && mesh.axes[i].name != name) {
      ++i;
    }
    if (i == all.size()) {
      fail({"sharding \"", sharding.text(), "\": no axis ", name, " on this mesh; its axes are ",
            axes_text(mesh, all), ", and several on one dim are written I_{", axes_text(mesh, all),
            "}"});
    }
    const char letter = all[i];
    if (used.find(letter) != std::string::npos) {
      fail({"sharding \"", sharding.text(), "\": axis ", name,
            " stands twice; an axis cuts one dim, or is summed over, once"});
    }
    used += letter;
    letters += letter;
  }
  return letters;
}

// Checks a sharding against the mesh and the array's shape.
inline AxisPlaces places_of(const PlacedMesh& mesh, const Sharding& sharding, const Shape& shape) {
  const std::size_t dims = sharding.dims.size();
  if (static_cast<int>(dims) != shape.size()) {
    fail({"sharding \"", sharding.text(), "\": ", dims, " dims for an array of shape ", shape,
          "; a name for each dim is right"});
  }
  std::string used;
  AxisPlaces places(dims + 1);
  places[0] = rising_union(letters_of(mesh, sharding, sharding.partial, used), "");
  for (std::size_t d = 0; d < dims; ++d) {
    const ShardedDim& dim = sharding.dims[d];
    for (std::size_t e = 0; e < d; ++e) {
      if (sharding.dims[e].name == dim.name) {
        fail({"sharding \"", sharding.text(), "\": dim ", dim.name,
              " stands twice; every dim has a name of its own"});
      }
    }
    places[d + 1] = letters_of(mesh, sharding, dim.axes, used);
    const std::int64_t n = shard_count(mesh, places[d + 1]);
    const std::int64_t size = shape[static_cast<int>(d)];
    if (size % n != 0) {
      fail({"sharding \"", sharding.text(), "\": dim ", dim.name, " of ", size,
            " does not divide over ", n, " devices; pad it to ", (size / n + 1) * n,
            " or use fewer axes"});
    }
  }
  return places;
}

// The sharding with dims named as those of `named`.
inline Sharding sharding_of(const PlacedMesh& mesh, const AxisPlaces& places,
                            const List<ShardedDim>& named) {
  Sharding out;
  out.partial = names_of(mesh, places[0]);
  for (std::size_t d = 0; d + 1 < places.size(); ++d) {
    out.dims.push_back({named[d].name, names_of(mesh, places[d + 1])});
  }
  return out;
}

}  // namespace detail

inline std::string Sharding::text() const {
  std::string out = partial.empty() ? "" : "{U" + detail::subscript(partial) + "}";
  for (std::size_t d = 0; d < dims.size(); ++d) {
    out += d > 0 ? ", " : out.empty() ? "" : " ";
    out += dims[d].name + detail::subscript(dims[d].axes);
  }
  return out;
}

// Throws where the text is not in the notation; the mesh is asked by mesh.shard().
inline Sharding parse_sharding(const std::string& text) {
  return detail::ShardingParser{text}.parse();
}

inline std::ostream& operator<<(std::ostream& out, const Sharding& sharding) {
  return out << sharding.text();
}

}  // namespace tinyscale
