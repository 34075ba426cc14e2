// SIGINT and SIGTERM as a wish, for work that has something to save before it ends.
#pragma once

namespace tpce::tools {

// While one lives, the first SIGINT or SIGTERM is only noted; a second one does what it would have done before, as any
// does from destruction on. A signal that was ignored, as under nohup, still is. One at a time.
class DeferredStop {
 public:
  DeferredStop();
  ~DeferredStop();
  DeferredStop(const DeferredStop&) = delete;
  DeferredStop& operator=(const DeferredStop&) = delete;

  // The one that was noted, or 0.
  static int signal();
};

}  // namespace tpce::tools
