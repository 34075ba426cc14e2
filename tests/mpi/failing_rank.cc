// failing_rank HOW RANK: computes losses until rank RANK (or every one: -1) fails in the way of the tests beside it.
#include <sys/types.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <map>
#include <new>
#include <string>
#include <vector>

#include "mpi/environment.h"
#include "mpi/guard.h"
#include "mpi/mpi_communicator.h"
#include "tpce/cross_entropy.h"
#include "tpce/scalar_backend.h"

namespace {

using tpce::ScalarBackend;

void say_cleaned_up() noexcept { (void)!write(STDERR_FILENO, "cleaned up\n", 11); }

void end_by(int signal) {
  raise(signal);
  pause();
}

const std::map<std::string, std::function<void()>>& failures() {
  static const std::map<std::string, std::function<void()>> kFailures{
      {"nothing", [] {}},
      {"out_of_memory", [] { throw std::bad_alloc(); }},
      {"killed", [] { end_by(SIGKILL); }},
      {"crash", [] { end_by(SIGSEGV); }},
      {"guard_killed",
       [] {
         kill(getppid(), SIGKILL);
         pause();
       }},
      {"exit", [] { _exit(3); }},
      {"hang", [] { pause(); }},
  };
  return kFailures;
}

// Fails in the second chunk of rows, while the collective of the first is in flight.
class FailingBackend final : public tpce::Backend {
 public:
  explicit FailingBackend(std::function<void()> fail) : fail_(std::move(fail)) {}

  std::string_view name() const override { return scalar_.name(); }
  tpce::Capabilities capabilities() const override { return scalar_.capabilities(); }
  tpce::Buffer allocate(std::size_t bytes) const override { return scalar_.allocate(bytes); }
  void partials(const tpce::Batch& batch, const tpce::Options& options, tpce::RowRange rows, const tpce::Partials& into,
                tpce::Queue queue) override {
    if (rows.first > 0) fail_();
    scalar_.partials(batch, options, rows, into, queue);
  }
  void merge(const tpce::Partials& into, const tpce::Partials& from, tpce::Queue queue) override {
    scalar_.merge(into, from, queue);
  }
  void finalize(const tpce::Partials& partials, const tpce::Options& options, const tpce::RowResults& results,
                tpce::Queue queue) override {
    scalar_.finalize(partials, options, results, queue);
  }
  void reduce(const tpce::RowResults& results, std::int64_t first_row, tpce::LossSum& sum, tpce::Queue queue) override {
    scalar_.reduce(results, first_row, sum, queue);
  }
  void gradient(const tpce::Batch& batch, const tpce::Options& options, const tpce::GradientTask& task,
                tpce::Queue queue) override {
    scalar_.gradient(batch, options, task, queue);
  }

 private:
  ScalarBackend scalar_;
  std::function<void()> fail_;
};

float loss_of_ranks(tpce::Backend& backend, tpce::mpi::MpiCommunicator& world) {
  constexpr std::int64_t kRows = 4, kWidth = 8;
  const std::vector<float> logits(kRows * kWidth, 0.25f);
  const std::vector<std::int64_t> labels(kRows, 3);
  const tpce::ShardPlan plan = tpce::ShardPlan::even(kWidth * world.size(), world.size());
  const std::vector<tpce::Shard> shards{{tpce::matrix_of(logits.data(), kRows, kWidth), world.rank()}};
  const tpce::Batch batch{plan, shards, tpce::Labels(labels.data(), kRows), plan.columns()};
  return tpce::cross_entropy_forward(batch, {}, {}, {backend, world, 1}).loss.value;
}

}  // namespace

int main(int argc, char** argv) {
  const auto launched = tpce::mpi::launched_rank();
  if (argc != 3 || !launched) return 64;
  tpce::mpi::guard_rank("tpce", *launched, say_cleaned_up);
  const std::int64_t failing = std::atoi(argv[2]);
  const tpce::mpi::Environment environment;
  tpce::mpi::MpiCommunicator world;
  world.set_before_abort(say_cleaned_up);
  const bool fails = failing == world.rank() || failing < 0;
  FailingBackend backend(fails ? failures().at(argv[1]) : failures().at("nothing"));
  try {
    const float loss = loss_of_ranks(backend, world);
    if (world.rank() == 0) std::printf("loss %.9g\n", static_cast<double>(loss));
  } catch (const std::exception&) {
    return 1;
  }
  return 0;
}
