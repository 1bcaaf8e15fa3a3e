package leasehold.interop;

import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;

/** A Redisson client with its threads and the objects that they use. */
final class Client {
    private final Map<String, Client> all;
    private final RedissonClient redisson;
    private final Map<String, Actor> actors = new ConcurrentHashMap<>();
    /** By the text that names them: Redisson keeps state in the objects too. */
    private final Map<String, Object> objects = new ConcurrentHashMap<>();

    /** {@code settings} are its name, the URL of the server or cluster, and options. */
    Client(Map<String, Client> all, String[] settings) {
        this.all = all;
        redisson = Redisson.create(Settings.of(settings));
    }

    String id() {
        return redisson.getId();
    }

    Actor actor(String name) {
        return actors.computeIfAbsent(name, Actor::new);
    }

    /** Runs {@code kind(name).method(arguments)}. */
    Object call(String text) throws Exception {
        if (text.startsWith("storm ")) {
            return new Storm(redisson, List.of(text.substring(6).split(" "))).run();
        }
        var call = Call.of(text);
        return call.on(objects.computeIfAbsent(call.object(), this::create));
    }

    void end() {
        redisson.shutdown();
    }

    /** {@code kind(name)}; a number behind the kind, as in {@code lock#2(name)}, asks for another object of that name. */
    private Object create(String object) {
        int open = object.indexOf('(');
        String kind = object.substring(0, open).replaceAll("#.*", "");
        String name = object.substring(open + 1, object.length() - 1);
        return switch (kind) {
            case "fenced" -> redisson.getFencedLock(name);
            case "sem" -> redisson.getSemaphore(name);
            case "pes" -> redisson.getPermitExpirableSemaphore(name);
            case "latch" -> redisson.getCountDownLatch(name);
            case "multi" -> redisson.getMultiLock(parts(name));
            case "group" -> redisson.getMultiLock(name.split("/")[0], List.of((Object[]) name.split("/")[1].split(",")));
            case "red" -> redisson.getRedLock(parts(name));
            default -> lock(kind, name);
        };
    }

    private RLock lock(String kind, String name) {
        return switch (kind) {
            case "lock" -> redisson.getLock(name);
            case "fair" -> redisson.getFairLock(name);
            case "spin" -> redisson.getSpinLock(name);
            case "nonreentrant" -> redisson.getNonReentrantLock(name);
            case "read" -> redisson.getReadWriteLock(name).readLock();
            case "write" -> redisson.getReadWriteLock(name).writeLock();
            default -> throw new IllegalArgumentException("no objects of the kind " + kind);
        };
    }

    /** Each as {@code client/kind/name}. */
    private RLock[] parts(String text) {
        String[] parts = text.split(",");
        var locks = new RLock[parts.length];
        for (int i = 0; i < parts.length; i++) {
            String[] part = parts[i].split("/", 3);
            locks[i] = all.get(part[0]).lock(part[1], part[2]);
        }
        return locks;
    }
}
