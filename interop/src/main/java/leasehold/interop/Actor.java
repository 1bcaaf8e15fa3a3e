package leasehold.interop;

import java.util.Arrays;
import java.util.Set;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Semaphore;
import org.redisson.misc.ReclosableLatch;

/** A thread with a name: what Redisson takes for the owner of a lock. */
final class Actor {
    /** What Redisson's waiters sleep in until they hear a message. For the answer to a request they wait in a future. */
    private static final Set<String> HEARING = Set.of(Semaphore.class.getName(), ReclosableLatch.class.getName());

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

    /** The number that locks have of it. */
    long id() throws Exception {
        if (thread == null) {
            // It begins with its first task.
            executor.submit(() -> { }).get();
        }
        return thread.getId();
    }

    Object interrupt() {
        thread.interrupt();
        return null;
    }

    /** Whether it sleeps until a message comes: it has asked, subscribed and asked again, in vain. */
    boolean sleeps() {
        Thread sleeper = thread;
        return sleeper != null && Arrays.stream(sleeper.getStackTrace()).anyMatch(frame -> HEARING.contains(frame.getClassName()));
    }
}
