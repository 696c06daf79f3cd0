#pragma once
// Boxes with arrows in layers from top to bottom (Sugiyama, Tagawa and Toda 1981): each box below
// all that it depends on, layers ordered so that few arrows cross, boxes as close_by to what they
// are joined to as their neighbours let them.

#include <algorithm>  // max, min
#include <cstddef>    // size_t
#include <vector>     // orders

#include "tinyscale/base/list.hpp"
#include "tinyscale/base/order.hpp"

namespace tinyscale {
namespace detail {

struct LayeredBox {
  double width = 0, height = 0;  // given
  double x = 0, y = 0;           // found: of the left upper corner
  int layer = 0;

  double middle() const { return x + width / 2; }
};

// Given boxes, each behind those that it depends on, and pairs of them. Arrows of one box share
// their way through layers without an end: a bend is a box without a size.
class LayeredLayout {
 public:
  struct Arrow {
    int from = 0, to = 0;
  };

  List<LayeredBox> boxes;  // those given, then bends
  List<Arrow> arrows;      // between neighbouring layers
  double width = 0, height = 0;
  int left_out = 0;  // arrows

  LayeredLayout() = default;
  // Arrows over more than `reach` layers are not drawn: they only say what is below what.
  LayeredLayout(const List<LayeredBox>& given, const List<Arrow>& joined, double gap_x,
                double gap_y, int reach = 1 << 30)
      : boxes(given), real_(given.size()), gap_(gap_x) {
    find_layers(joined);
    List<Arrow> close_by;
    for (const Arrow& arrow : joined) {
      if (boxes[at(arrow.to)].layer - boxes[at(arrow.from)].layer <= reach) {
        close_by.push_back(arrow);
      }
    }
    left_out = static_cast<int>(joined.size() - close_by.size());
    add_bends(close_by);
    order_layers();
    place(gap_y);
  }

  bool is_bend(int box) const { return at(box) >= real_; }
  double top_of(int layer) const { return tops_[at(layer)]; }
  double bottom_of(int layer) const { return bottoms_[at(layer)]; }
  // Arrows that end at a box, from left to right.
  List<int> arrows_into(int box) const {
    std::vector<int> found;
    std::vector<double> keys;
    for (std::size_t a = 0; a < arrows.size(); ++a) {
      if (arrows[a].to == box) {
        found.push_back(static_cast<int>(a));
        keys.push_back(boxes[at(arrows[a].from)].middle());
      }
    }
    List<int> out;
    for (const std::size_t i : stable_order(keys)) {
      out.push_back(found[i]);
    }
    return out;
  }

 private:
  static std::size_t at(int i) { return static_cast<std::size_t>(i); }

  // As high as possible, but for boxes without operands and what follows from one of them alone:
  // those stand just above their first reader.
  void find_layers(const List<Arrow>& joined) {
    List<char> fed(real_);
    for (std::size_t i = 0; i < real_; ++i) {
      int operands = 0;
      for (const Arrow& arrow : joined) {
        if (at(arrow.to) == i) {
          boxes[i].layer = std::max(boxes[i].layer, boxes[at(arrow.from)].layer + 1);
          fed[i] = ++operands > 1 || fed[at(arrow.from)] != 0 ? 1 : 0;
        }
      }
    }
    for (std::size_t i = real_; i-- > 0;) {
      int least = -1;
      for (const Arrow& arrow : joined) {
        if (at(arrow.from) == i) {
          const int below = boxes[at(arrow.to)].layer - 1;
          least = least < 0 ? below : std::min(least, below);
        }
      }
      if (fed[i] == 0 && least > boxes[i].layer) {
        boxes[i].layer = least;
      }
    }
  }

  void add_bends(const List<Arrow>& joined) {
    List<List<int>> ways(real_);  // of each box: its bends, from the layer below it on
    for (const Arrow& arrow : joined) {
      const int begin = boxes[at(arrow.from)].layer, end = boxes[at(arrow.to)].layer;
      int last = arrow.from;
      for (int layer = begin + 1; layer < end; ++layer) {
        List<int>& way = ways[at(arrow.from)];
        const std::size_t step = at(layer - begin - 1);
        if (step >= way.size()) {
          LayeredBox bend;
          bend.layer = layer;
          way.push_back(static_cast<int>(boxes.size()));
          boxes.push_back(bend);
          arrows.push_back(Arrow{last, way[step]});
        }
        last = way[step];
      }
      arrows.push_back(Arrow{last, arrow.to});
    }
    int layers = 0;
    for (const LayeredBox& box : boxes) {
      layers = std::max(layers, box.layer + 1);
    }
    above_ = below_ = List<std::vector<int>>(boxes.size());
    for (const Arrow& arrow : arrows) {
      above_[at(arrow.to)].push_back(arrow.from);
      below_[at(arrow.from)].push_back(arrow.to);
    }
    layers_ = List<std::vector<int>>(at(layers));
    for (std::size_t i = 0; i < boxes.size(); ++i) {
      layers_[at(boxes[i].layer)].push_back(static_cast<int>(i));
    }
  }

  // Pairs of arrows that cross, over all layers.
  std::size_t crossings() const {
    std::size_t count = 0;
    for (std::size_t a = 0; a < arrows.size(); ++a) {
      for (std::size_t b = a + 1; b < arrows.size(); ++b) {
        if (boxes[at(arrows[a].from)].layer == boxes[at(arrows[b].from)].layer) {
          const double from = boxes[at(arrows[a].from)].x - boxes[at(arrows[b].from)].x;
          const double to = boxes[at(arrows[a].to)].x - boxes[at(arrows[b].to)].x;
          count += from * to < 0 ? 1U : 0U;
        }
      }
    }
    return count;
  }
  void number_places(const std::vector<int>& layer) {
    for (std::size_t i = 0; i < layer.size(); ++i) {
      boxes[at(layer[i])].x = static_cast<double>(i);
    }
  }

  // Each box to the middle of its neighbours in the layer before, up and down; the best is kept.
  void order_layers() {
    for (const std::vector<int>& layer : layers_) {
      number_places(layer);
    }
    List<std::vector<int>> best = layers_;
    std::size_t fewest = crossings();
    for (int sweep = 0; sweep < 12 && fewest > 0; ++sweep) {
      const bool down = sweep % 2 == 0;
      for (std::size_t step = 0; step < layers_.size(); ++step) {
        std::vector<int>& layer = layers_[down ? step : layers_.size() - 1 - step];
        const std::vector<int> old = layer;
        std::vector<double> keys;
        for (const int box : layer) {
          const std::vector<int>& close_by = down ? above_[at(box)] : below_[at(box)];
          double sum = 0;
          for (const int other : close_by) {
            sum += boxes[at(other)].x;
          }
          keys.push_back(close_by.empty() ? boxes[at(box)].x
                                          : sum / static_cast<double>(close_by.size()));
        }
        layer.clear();
        for (const std::size_t i : stable_order(keys)) {
          layer.push_back(old[i]);
        }
        number_places(layer);
      }
      const std::size_t now = crossings();
      if (now < fewest) {
        fewest = now;
        best = layers_;
      }
    }
    layers_ = best;
  }

  // The places nearest to those wanted (least squares) that keep order and gaps: neighbours that
  // would overlap move as one.
  void pack(const std::vector<int>& layer, const std::vector<double>& wanted) {
    struct Run {
      double sum = 0, count = 0;  // of wanted places, less the room before each
      std::size_t first = 0;
      double place() const { return sum / count; }
    };
    List<Run> runs;
    std::vector<double> room(layer.size());
    for (std::size_t i = 0; i < layer.size(); ++i) {
      room[i] = i == 0 ? 0 : room[i - 1] + boxes[at(layer[i - 1])].width + gap_;
      runs.push_back(Run{wanted[i] - room[i], 1, i});
      while (runs.size() > 1 && runs[runs.size() - 2].place() > runs.back().place()) {
        const Run last = runs.back();
        runs.pop_back();
        runs.back().sum += last.sum;
        runs.back().count += last.count;
      }
    }
    for (std::size_t r = 0; r < runs.size(); ++r) {
      const std::size_t end = r + 1 < runs.size() ? runs[r + 1].first : layer.size();
      for (std::size_t i = runs[r].first; i < end; ++i) {
        boxes[at(layer[i])].x = runs[r].place() + room[i];
      }
    }
  }

  void place(double gap_y) {
    for (const std::vector<int>& layer : layers_) {
      pack(layer, std::vector<double>(layer.size(), 0.0));
    }
    for (int sweep = 0; sweep < 40; ++sweep) {
      const bool down = sweep % 2 == 0;
      for (std::size_t step = 0; step < layers_.size(); ++step) {
        const std::vector<int>& layer = layers_[down ? step : layers_.size() - 1 - step];
        std::vector<double> wanted;
        for (const int box : layer) {
          const LayeredBox& own = boxes[at(box)];
          double sum = 0, count = 0;
          for (const std::vector<int>* close_by : {&above_[at(box)], &below_[at(box)]}) {
            const bool before = (close_by == &above_[at(box)]) == down;
            for (const int other : *close_by) {
              const double weight = (before ? 2 : 1) * (is_bend(box) && is_bend(other) ? 12 : 1);
              sum += weight * boxes[at(other)].middle();
              count += weight;
            }
          }
          wanted.push_back(count > 0 ? sum / count - own.width / 2 : own.x);
        }
        pack(layer, wanted);
      }
    }
    double left = 0;
    for (const LayeredBox& box : boxes) {
      left = std::min(left, box.x);
    }
    double y = 0;
    for (const std::vector<int>& layer : layers_) {
      double high = 0;
      for (const int box : layer) {
        high = std::max(high, boxes[at(box)].height);
      }
      for (const int box : layer) {
        boxes[at(box)].x -= left;
        boxes[at(box)].y =  // what has no operands stands next to its reader
            above_[at(box)].empty() ? y + high - boxes[at(box)].height : y;
        width = std::max(width, boxes[at(box)].x + boxes[at(box)].width);
      }
      tops_.push_back(y);
      bottoms_.push_back(y + high);
      height = y + high;
      y = height + gap_y;
    }
  }

  std::size_t real_ = 0;
  double gap_ = 0;
  List<std::vector<int>> above_, below_;  // neighbours
  List<std::vector<int>> layers_;         // from left to right
  List<double> tops_, bottoms_;           // of layers
};

}  // namespace detail
}  // namespace tinyscale
