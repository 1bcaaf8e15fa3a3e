package leasehold.interop;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/**
 * Redisson on command: reads lines from standard input, answers each on standard output, ends with its input.
 *
 * <p>A command is {@code ID new CLIENT URL [OPTION=VALUE...]}, {@code ID end CLIENT}, {@code ID CLIENT/THREAD CALL},
 * {@code ID CLIENT/THREAD interrupt} or {@code ID CLIENT/THREAD sleeps}. Commands of one thread run in their order, all others at
 * the same time. An answer is {@code ID BEGIN END RESULT} with times in microseconds of the host's monotonic clock.
 */
public final class Main {
    private final Map<String, Client> clients = new ConcurrentHashMap<>();
    private final PrintStream answers = System.out;

    private Main() {
    }

    public static void main(String[] args) throws IOException {
        var main = new Main();
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            main.obey(line);
        }
        // Shutting the clients down would wait for threads that are parked in locks.
        Runtime.getRuntime().halt(0);
    }

    private void obey(String line) {
        String[] parts = line.split(" ", 3);
        String id = parts[0];
        String rest = parts.length > 2 ? parts[2] : "";
        switch (parts[1]) {
            case "new" -> new Thread(() -> answer(id, () -> create(rest)), "new").start();
            case "end" -> new Thread(() -> answer(id, () -> end(rest)), "end").start();
            default -> act(id, parts[1], rest);
        }
    }

    private void act(String id, String actor, String call) {
        String[] names = actor.split("/");
        Client client = clients.get(names[0]);
        if (client == null) {
            answer(id, () -> {
                throw new IllegalArgumentException("no client " + names[0]);
            });
            return;
        }
        Actor thread = client.actor(names[1]);
        switch (call) {
            case "thread" -> answer(id, () -> client.id() + ":" + thread.id());
            case "interrupt" -> answer(id, thread::interrupt);
            case "sleeps" -> answer(id, thread::sleeps);
            default -> thread.execute(() -> answer(id, () -> client.call(call)));
        }
    }

    private Object create(String text) {
        String[] parts = text.split(" ");
        var client = new Client(clients, parts);
        clients.put(parts[0], client);
        return client.id();
    }

    private Object end(String name) {
        clients.remove(name).end();
        return null;
    }

    private void answer(String id, Work work) {
        long begin = now();
        String result = Result.of(work);
        String line = id + " " + begin + " " + now() + " " + result;
        synchronized (answers) {
            answers.println(line);
            answers.flush();
        }
    }

    /** Microseconds on the clock that all processes of a host share. */
    static long now() {
        return System.nanoTime() / 1000;
    }
}
