package leasehold.interop;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import org.redisson.Redisson;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * Redisson as a contender of {@code make bench}: one workload, its figures on standard output as lines of a name and a value.
 *
 * <p>Arguments: the workload ({@code pair}, {@code fenced}, {@code fair}, {@code tasks}, {@code 1x64}, {@code 2x16}, or
 * {@code renewals}), the port of a server, milliseconds to warm up, milliseconds to measure, and how many locks to hold or the
 * milliseconds of a lease where that is asked for.
 */
public final class Bench {
    private static final int TASKS = 64;

    private final int port;
    private final long warmUp;
    private final long millis;

    private Bench(String[] args) {
        port = Integer.parseInt(args[1]);
        warmUp = Long.parseLong(args[2]);
        millis = Long.parseLong(args[3]);
    }

    public static void main(String[] args) {
        int status = 0;
        try {
            new Bench(args).run(args);
        } catch (Throwable e) {
            e.printStackTrace();
            status = 1;
        }
        System.out.flush();
        // Without a shutdown, which waits for threads that are parked in locks.
        Runtime.getRuntime().halt(status);
    }

    private void run(String[] args) throws Exception {
        switch (args[0]) {
            case "pair", "fenced", "fair" -> pairs(args[0], 1);
            case "tasks" -> pairs("pair", TASKS);
            case "renewals" -> renewals(Integer.parseInt(args[4]), Long.parseLong(args[5]));
            default -> handOff(args[0]);
        }
    }

    /** Each task locks and unlocks a lock of its own. */
    private void pairs(String kind, int tasks) throws Exception {
        RedissonClient redisson = client(new Config());
        var window = new Window();
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < tasks; i++) {
            String name = "lock:redisson:" + kind + ":" + i;
            RLock lock = kind.equals("fair") ? redisson.getFairLock(name) : redisson.getLock(name);
            RFencedLock fenced = redisson.getFencedLock(name);
            threads.add(window.start(() -> {
                long begin = System.nanoTime();
                if (kind.equals("fenced")) {
                    fenced.lockAndGetToken();
                    fenced.unlock();
                } else {
                    lock.lock();
                    lock.unlock();
                }
                return System.nanoTime() - begin;
            }));
        }
        window.measure(threads);
    }

    /** So many clients with so many threads each want one lock all the time: {@code 2x16}. */
    private void handOff(String fleet) throws Exception {
        String[] parts = fleet.split("x");
        var released = new AtomicLong();
        var window = new Window();
        List<Thread> threads = new ArrayList<>();
        for (int client = 0; client < Integer.parseInt(parts[0]); client++) {
            RedissonClient redisson = client(new Config());
            for (int i = 0; i < Integer.parseInt(parts[1]); i++) {
                RLock lock = redisson.getLock("lock:redisson:" + fleet);
                threads.add(window.start(() -> {
                    lock.lock();
                    long waited = System.nanoTime() - released.get();
                    released.set(System.nanoTime());
                    lock.unlock();
                    return waited;
                }));
            }
        }
        window.measure(threads);
    }

    /** Holds so many locks for as long as each is to be renewed three times. */
    private void renewals(int count, long lease) throws Exception {
        var config = new Config();
        config.setLockWatchdogTimeout(lease);
        RedissonClient redisson = client(config);
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < TASKS; i++) {
            int first = i;
            threads.add(new Thread(() -> {
                for (int n = first; n < count; n += TASKS) {
                    redisson.getLock("renewed:redisson:" + n).lock();
                }
            }));
        }
        threads.forEach(Thread::start);
        for (Thread thread : threads) {
            thread.join();
        }
        Thread.sleep(warmUp);
        var before = Statistics.of(port);
        Thread.sleep(lease);
        var after = Statistics.of(port);
        double renewals = after.renewals - before.renewals;
        print("lost", count - redisson.getKeys().count());
        print("per_s", renewals * 1000 / lease);
        after.printSince(before, renewals);
    }

    private RedissonClient client(Config config) {
        config.useSingleServer().setAddress("redis://127.0.0.1:" + port);
        return Redisson.create(config);
    }

    private static void print(String name, double value) {
        System.out.println(name + " " + value);
    }

    /** One turn; the nanoseconds that are of interest. */
    private interface Turn {
        long take() throws Exception;
    }

    /** The time in which the turns count. */
    private final class Window {
        private volatile boolean isOpen;
        private volatile boolean isOver;
        private final List<long[]> all = new ArrayList<>();

        Thread start(Turn turn) {
            var thread = new Thread(() -> {
                long[] nanos = new long[1 << 12];
                int used = 0;
                try {
                    while (!isOver) {
                        long time = turn.take();
                        if (isOpen) {
                            if (used == nanos.length) {
                                nanos = Arrays.copyOf(nanos, 2 * used);
                            }
                            nanos[used++] = time;
                        }
                    }
                } catch (Throwable e) {
                    e.printStackTrace();
                    Runtime.getRuntime().halt(1);
                }
                synchronized (all) {
                    all.add(Arrays.copyOf(nanos, used));
                }
            });
            thread.start();
            return thread;
        }

        void measure(List<Thread> threads) throws Exception {
            Thread.sleep(warmUp);
            var before = Statistics.of(port);
            long begin = System.nanoTime();
            isOpen = true;
            Thread.sleep(millis);
            isOpen = false;
            double seconds = (System.nanoTime() - begin) / 1e9;
            var after = Statistics.of(port);
            isOver = true;
            for (Thread thread : threads) {
                thread.join();
            }
            long[] nanos = all.stream().flatMapToLong(Arrays::stream).sorted().toArray();
            print("per_s", nanos.length / seconds);
            print("p50_us", nanos[nanos.length / 2] / 1e3);
            after.printSince(before, nanos.length);
        }
    }

    /** CPU seconds of the server and of this process, and commands that the server has run, in scripts too, renewals among them. */
    private record Statistics(double server, double commands, double renewals, double client) {
        static Statistics of(int port) throws IOException {
            double cpu = 0;
            double commands = 0;
            double renewals = 0;
            try (var socket = new Socket("127.0.0.1", port)) {
                socket.getOutputStream().write("INFO ALL\r\n".getBytes(StandardCharsets.US_ASCII));
                var lines = new BufferedReader(new InputStreamReader(socket.getInputStream(), StandardCharsets.UTF_8));
                int left = Integer.parseInt(lines.readLine().substring(1));
                while (left > 0) {
                    String line = lines.readLine();
                    left -= line.length() + 2;
                    if (line.startsWith("used_cpu_sys:") || line.startsWith("used_cpu_user:")) {
                        cpu += Double.parseDouble(line.substring(line.indexOf(':') + 1));
                    } else if (line.startsWith("cmdstat_")) {
                        double calls = Double.parseDouble(line.substring(line.indexOf('=') + 1, line.indexOf(',')));
                        commands += calls;
                        renewals += line.startsWith("cmdstat_pexpire:") ? calls : 0;
                    }
                }
            }
            var system = (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
            return new Statistics(cpu, commands, renewals, system.getProcessCpuTime() / 1e9);
        }

        void printSince(Statistics before, double turns) {
            print("server_us", (server - before.server) * 1e6 / turns);
            print("commands", (commands - before.commands) / turns);
            print("client_us", (client - before.client) * 1e6 / turns);
        }
    }
}
