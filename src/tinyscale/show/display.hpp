#pragma once
// A value shown where the reader is: as a picture or table in a notebook, as text elsewhere.
// Notebook kernels look for mime_bundle_repr(x), which must return their own json type. That type
// is asked for only when a kernel calls: the header never includes it.
// TINYSCALE_DISPLAY=frame in the environment writes \x02MIME <type> <base64>\x03 instead, which
// a small kernel can turn into the same.

#include <cstdint>
#include <iostream>
#include <string>
#include <utility>

#include "tinyscale/base/config.hpp"
#include "tinyscale/base/text.hpp"
#include "tinyscale/show/html.hpp"
#include "tinyscale/show/svg.hpp"

namespace xcpp {
struct tinyscale_probe {};  // lets argument-dependent lookup reach the kernel's own functions
}  // namespace xcpp

namespace tinyscale {

struct ShowOptions {
  std::ostream* out = &std::cout;  // null: silent
  std::string path;                // not empty: the picture or page is also written there
};

namespace detail {

template <class>
struct lazy {
  using type = xcpp::tinyscale_probe;
};
template <class Tag>
using probe = typename lazy<Tag>::type;  // known only when a kernel calls

inline std::string base64(const std::string& bytes) {
  static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;  // three bytes are four letters of six bits
    for (std::size_t k = 0; k < 3; ++k) {
      group = group << 8 | (i + k < bytes.size() ? static_cast<unsigned char>(bytes[i + k]) : 0u);
    }
    for (std::size_t k = 0; k < 4; ++k) {
      out += i + k <= bytes.size() ? letters[group >> (18 - 6 * k) & 63u] : '=';
    }
  }
  return out;
}

inline bool frames_wanted() { return environment("TINYSCALE_DISPLAY") == "frame"; }

inline void show_frame(std::ostream& out, const std::string& type, const std::string& data) {
  out << '\x02' << "MIME " << type << ' ' << base64(data) << '\x03' << std::endl;
}

}  // namespace detail

template <class Tag = void,
          class Json = decltype(mime_bundle_repr(std::declval<detail::probe<Tag>>()))>
Json mime_bundle_repr(const Svg& picture) {
  Json bundle = Json::object();
  bundle["text/plain"] = picture.text;
  bundle["image/svg+xml"] = picture.markup();
  return bundle;
}

template <class Tag = void,
          class Json = decltype(mime_bundle_repr(std::declval<detail::probe<Tag>>()))>
Json mime_bundle_repr(const Table& table) {
  Json bundle = Json::object();
  bundle["text/plain"] = table.text();
  bundle["text/html"] = detail::html_table(table);
  return bundle;
}

// A picture: drawn in a notebook, described in words on a terminal.
inline void show(const Svg& picture, const ShowOptions& options = {}) {
  if (!options.path.empty()) {
    picture.save(options.path);
  }
  if (options.out == nullptr) {
    return;
  }
  if (detail::frames_wanted()) {
    detail::show_frame(*options.out, "image/svg+xml", picture.markup());
    return;
  }
#ifdef XCPP_DISPLAY_HPP  // the notebook included the kernel's display header before this one
  xcpp::display(picture);
#else
  *options.out << picture;
#endif
}

// A table: set in a notebook, in aligned columns on a terminal.
inline void show(const Table& table, const ShowOptions& options = {}) {
  if (!options.path.empty()) {
    HtmlPage page(table.title.empty() ? "Table" : table.title);
    page.table(table);
    page.save(options.path);
  }
  if (options.out == nullptr) {
    return;
  }
  if (detail::frames_wanted()) {
    detail::show_frame(*options.out, "text/html", detail::html_table(table));
    return;
  }
#ifdef XCPP_DISPLAY_HPP
  xcpp::display(table);
#else
  *options.out << table;
#endif
}

// Anything else that can be printed: reports, tensors, numbers. No page is made of them.
template <class T>
void show(const T& value, const ShowOptions& options = {}) {
  if (!options.path.empty()) {
    detail::fail({"show: path is \"", options.path,
                  "\", but only pictures and tables are written to a page; "
                  "show(report.table(), options) is right, or print to a file"});
  }
  if (options.out != nullptr) {
    *options.out << value << '\n';
  }
}

}  // namespace tinyscale
