package leasehold.interop;

import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/** A thread with a name: what Redisson takes for the owner of a lock. */
final class Actor {
    private final ExecutorService executor;
    private volatile Thread thread;

    Actor(String name) {
        executor = Executors.newSingleThreadExecutor(task -> {
            thread = new Thread(task, name);
            thread.setDaemon(true);
            return thread;
        });
    }

    void execute(Runnable task) {
        executor.execute(task);
    }

    Object interrupt() {
        thread.interrupt();
        return null;
    }
}
