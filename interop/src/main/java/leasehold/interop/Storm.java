package leasehold.interop;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Random;
import java.util.concurrent.TimeUnit;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RedissonClient;

/**
 * A thread of a storm: takes locks and permits of every kind in turn by chance, holds them for a moment, and records what
 * happens, until there is a file {@code stop}. The worker processes of the Rust half do the same with the same names.
 */
final class Storm {
    private static final String POOL = "interop:pool";
    private static final int PERMITS = 4;
    /** Redisson tells the holder of a lock of no end, so it claims the lock until it gives it back. */
    private static final long UNKNOWN = Long.MAX_VALUE / 4;

    private final RedissonClient redisson;
    private final Path directory;
    private final Random chance;
    private final History history;
    private final long lease;

    /** {@code words} are a directory, a seed, the number of this thread, and the lease of a permit in milliseconds. */
    Storm(RedissonClient redisson, List<String> words) throws IOException {
        this.redisson = redisson;
        directory = Path.of(words.get(0));
        chance = new Random(Long.parseLong(words.get(1)));
        lease = Long.parseLong(words.get(3));
        history = new History(directory, "java-" + words.get(2));
    }

    Object run() throws Exception {
        while (!Files.exists(directory.resolve("stop"))) {
            int kind = chance.nextInt(100);
            if (kind < 25) {
                lock("interop:mutex", "exclusive", redisson.getLock("interop:mutex"));
            } else if (kind < 40) {
                lock("interop:fair", "ordered", redisson.getFairLock("interop:fair"));
            } else if (kind < 60) {
                lock("interop:rw", "shared", redisson.getReadWriteLock("interop:rw").readLock());
            } else if (kind < 70) {
                lock("interop:rw", "exclusive", redisson.getReadWriteLock("interop:rw").writeLock());
            } else if (kind < 85) {
                fenced(redisson.getFencedLock("interop:fenced"));
            } else {
                permit(redisson.getPermitExpirableSemaphore(POOL));
            }
            Thread.sleep(chance.nextInt(5));
        }
        return null;
    }

    private void lock(String key, String mode, RLock lock) throws Exception {
        boolean waits = chance.nextInt(100) < 75;
        long call = history.invoke(key, mode, waits);
        try {
            boolean taken = waits ? waitFor(lock) : lock.tryLock();
            if (!taken) {
                history.fail(call, "held by others");
                return;
            }
        } catch (Exception error) {
            failed(call, error);
            return;
        }
        hold(history.ok(call, 0, UNKNOWN), lock);
    }

    private boolean waitFor(RLock lock) throws InterruptedException {
        if (chance.nextBoolean()) {
            lock.lock();
            return true;
        }
        return lock.tryLock(chance.nextInt(1500), TimeUnit.MILLISECONDS);
    }

    private void fenced(RFencedLock lock) throws Exception {
        long call = history.invoke("interop:fenced", "exclusive", true);
        long token;
        try {
            token = lock.lockAndGetToken();
        } catch (Exception error) {
            failed(call, error);
            return;
        }
        hold(history.ok(call, token, UNKNOWN), lock);
    }

    private void hold(String hold, RLock lock) throws InterruptedException {
        work();
        history.releases(hold);
        try {
            lock.unlock();
            history.released(hold, "released");
        } catch (IllegalMonitorStateException gone) {
            history.released(hold, "already_gone");
        } catch (Exception error) {
            history.released(hold, "unknown");
        }
    }

    private void permit(RPermitExpirableSemaphore pool) throws Exception {
        long asked = Main.now();
        long call = history.invoke(POOL, "{\"permit\":" + PERMITS + "}", true);
        String id;
        try {
            id = pool.tryAcquire(chance.nextInt(1500), lease, TimeUnit.MILLISECONDS);
        } catch (Exception error) {
            failed(call, error);
            return;
        }
        if (id == null) {
            history.fail(call, "none is free");
            return;
        }
        // Nobody renews a permit, so its end is known: the call took it later than it was asked for.
        String hold = history.ok(call, 0, asked + lease * 1000);
        Thread.sleep(chance.nextInt(4));
        history.releases(hold);
        try {
            history.released(hold, pool.tryRelease(id) ? "released" : "already_gone");
        } catch (Exception error) {
            history.released(hold, "unknown");
        }
    }

    /** Now and then for longer than a lease. */
    private void work() throws InterruptedException {
        Thread.sleep(chance.nextInt(400) == 0 ? lease * 3 / 2 : chance.nextInt(4));
    }

    /** Without a load of retries while a server is down. */
    private void failed(long call, Exception error) throws InterruptedException {
        history.fail(call, error.getClass().getSimpleName());
        Thread.sleep(20);
    }
}
