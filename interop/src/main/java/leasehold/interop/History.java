package leasehold.interop;

import java.io.IOException;
import java.io.OutputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.concurrent.atomic.AtomicLong;

/** This process's part of a history, as the checker of the Rust half reads it: one event a line, one write a line. */
final class History {
    private static final long PROCESS = ProcessHandle.current().pid();
    private static final AtomicLong CALLS = new AtomicLong();
    private static OutputStream file;

    private final String client;

    History(Path directory, String client) throws IOException {
        this.client = client;
        synchronized (History.class) {
            if (file == null) {
                Path path = directory.resolve("history-" + PROCESS + ".jsonl");
                file = Files.newOutputStream(path, StandardOpenOption.CREATE, StandardOpenOption.APPEND);
            }
        }
    }

    /** Before a call. {@code mode} is a word, or an object of JSON. */
    long invoke(String key, String mode, boolean waits) {
        long call = CALLS.incrementAndGet();
        String value = mode.startsWith("{") ? mode : quoted(mode);
        write("invoke", "\"call\":%d,\"key\":%s,\"mode\":%s,\"waits\":%b,\"bound\":null"
                .formatted(call, quoted(key), value, waits));
        return call;
    }

    /** After it: what it took is claimed until this time, or until it is given back. */
    String ok(long call, long token, long until) {
        String hold = PROCESS + ":" + client + ":" + call;
        write("ok", "\"call\":%d,\"hold\":%s,\"token\":%d,\"valid_until\":%d"
                .formatted(call, quoted(hold), token, until));
        return hold;
    }

    void fail(long call, String why) {
        write("fail", "\"call\":%d,\"why\":%s".formatted(call, quoted(why)));
    }

    void releases(String hold) {
        write("release_invoke", "\"hold\":" + quoted(hold));
    }

    void released(String hold, String outcome) {
        write("release_ok", "\"hold\":%s,\"outcome\":%s".formatted(quoted(hold), quoted(outcome)));
    }

    private void write(String event, String rest) {
        // Stamped under the lock, so that the lines stand in the order of their times.
        synchronized (History.class) {
            String line = "{\"at\":%d,\"process\":%d,\"client\":%s,\"event\":%s,%s}\n"
                    .formatted(Main.now(), PROCESS, quoted(client), quoted(event), rest);
            try {
                file.write(line.getBytes(StandardCharsets.UTF_8));
            } catch (IOException error) {
                throw new UncheckedIOException(error);
            }
        }
    }

    private static String quoted(String text) {
        return '"' + text.replace("\\", "\\\\").replace("\"", "\\\"") + '"';
    }
}
