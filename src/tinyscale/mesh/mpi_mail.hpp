#pragma once
// Letters between the MPI ranks of a run: texts that are sent and read without waiting, each
// sender's in order. At the end every letter is read, so that the next run finds none of this one.

#if defined(TINYSCALE_USE_MPI)

// clang-format off
#  include <time.h>  // nanosleep
// clang-format on

#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>   // yield
#include <utility>  // move
#include <vector>

#include "tinyscale/base/error.hpp"
#include "tinyscale/base/list.hpp"
#include "tinyscale/base/shared.hpp"
#include "tinyscale/mesh/mpi_bytes.hpp"
#include "tinyscale/mesh/mpi_exchange.hpp"

namespace tinyscale {
namespace detail {

// Between two looks for what other processes do: soon at first, then with a pause.
inline void let_others_run(std::int64_t looks) {
  if (looks < 2000) {
    std::this_thread::yield();
  } else {
    const timespec pause = {0, 20000};
    nanosleep(&pause, nullptr);
  }
}

class MpiMail {
 public:
  explicit MpiMail(MPI_Comm comm) {
    int size = 1;
    MPI_Comm_dup(comm, &comm_);
    MPI_Comm_size(comm, &size);
    told_.assign(static_cast<std::size_t>(size), 0);
  }
  ~MpiMail() { MPI_Comm_free(&comm_); }
  MpiMail(const MpiMail&) = delete;
  MpiMail& operator=(const MpiMail&) = delete;

  void tell(int rank, int tag, const std::string& text) {
    if (text.size() > 0x7fffffffU) {
      fail({"mpi: a message of ", text.size(), " bytes; at most 2^31 - 1"});
    }
    const Shared<Letter> letter(new Letter);
    letter->text = text;
    MPI_Isend(letter->text.data(), static_cast<int>(text.size()), MPI_CHAR, rank, tag, comm_,
              &letter->request);
    ++told_[static_cast<std::size_t>(rank)];
    letters_.push_back(letter);
  }

  // The next letter that has come, if one has.
  bool read(Bytes& text, int& from, int& tag) {
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    int here = 0, count = 0;
    MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm_, &here, &message, &status);
    if (here == 0) {
      return false;
    }
    MPI_Get_count(&status, MPI_CHAR, &count);
    std::string bytes(static_cast<std::size_t>(count), '\0');
    MPI_Mrecv(&bytes[0], count, MPI_CHAR, &message, MPI_STATUS_IGNORE);
    ++heard_;
    text = Bytes(std::move(bytes));
    from = status.MPI_SOURCE;
    tag = status.MPI_TAG;
    return true;
  }

  // Lets go of the letters that have left.
  void sweep() {
    for (std::size_t i = letters_.size(); i-- > 0;) {
      int gone = 0;
      MPI_Test(&letters_[i]->request, &gone, MPI_STATUS_IGNORE);
      if (gone != 0) {
        letters_[i] = letters_.back();
        letters_.pop_back();
      }
    }
  }

  // All letters to this rank are read and its own have gone: the next run finds none of this one.
  void drain() {
    std::vector<std::int64_t> from(told_.size());
    MPI_Alltoall(told_.data(), 1, MPI_INT64_T, from.data(), 1, MPI_INT64_T, comm_);
    std::int64_t all = 0;
    for (const std::int64_t count : from) {
      all += count;
    }
    Bytes text;
    for (int rank = 0, tag = 0; heard_ < all;) {
      read(text, rank, tag);
    }
    for (const Shared<Letter>& letter : letters_) {
      MPI_Wait(&letter->request, MPI_STATUS_IGNORE);
    }
    letters_.clear();
  }

 private:
  struct Letter {
    std::string text;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  MPI_Comm comm_ = MPI_COMM_NULL;
  List<Shared<Letter>> letters_;    // that may not have left
  std::vector<std::int64_t> told_;  // letters, by rank
  std::int64_t heard_ = 0;
};

}  // namespace detail
}  // namespace tinyscale

#endif  // TINYSCALE_USE_MPI
