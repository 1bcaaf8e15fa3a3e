package leasehold.interop;

import java.net.URI;
import java.time.Duration;
import org.redisson.client.codec.ByteArrayCodec;
import org.redisson.client.codec.Codec;
import org.redisson.client.codec.StringCodec;
import org.redisson.codec.Kryo5Codec;
import org.redisson.config.BaseConfig;
import org.redisson.config.BaseMasterSlaveServersConfig;
import org.redisson.config.Config;
import org.redisson.config.ConstantDelay;
import org.redisson.config.Protocol;
import org.redisson.config.ShardedSubscriptionMode;

/** Redisson's configuration from words. What is not mentioned is Redisson's default, except for the sizes of pools. */
final class Settings {
    /** Small: many clients run in one process. */
    private static final int CONNECTIONS = 16;

    private Settings() {
    }

    /** From a client's name, a URL, and options. */
    static Config of(String[] words) {
        String url = words[1];
        var config = new Config().setThreads(8).setNettyThreads(4);
        BaseConfig<?> servers = switch (URI.create(url).getScheme()) {
            case "redis-cluster" -> cluster(config, words);
            case "redis-sentinel" -> sentinels(config, url);
            case "redis-replicated" -> replicated(config, url);
            default -> single(config, url);
        };
        for (int i = 2; i < words.length; i++) {
            String[] option = words[i].split("=", 2);
            apply(config, servers, option[0], option[1]);
        }
        return config;
    }

    private static BaseConfig<?> single(Config config, String url) {
        return config.useSingleServer().setAddress(url).setConnectionMinimumIdleSize(2).setConnectionPoolSize(CONNECTIONS);
    }

    /** A master and its replicas, in this order. */
    private static BaseConfig<?> replicated(Config config, String url) {
        String[] hosts = hosts(url);
        var servers = config.useMasterSlaveServers().setMasterAddress("redis://" + hosts[0]);
        for (int i = 1; i < hosts.length; i++) {
            servers.addSlaveAddress("redis://" + hosts[i]);
        }
        return small(servers);
    }

    private static BaseConfig<?> sentinels(Config config, String url) {
        var servers = config.useSentinelServers().setMasterName(URI.create(url).getPath().substring(1)).setScanInterval(500);
        for (String host : hosts(url)) {
            servers.addSentinelAddress("redis://" + host);
        }
        return small(servers);
    }

    private static String[] hosts(String url) {
        return URI.create(url).getAuthority().split(",");
    }

    private static <T extends BaseMasterSlaveServersConfig<T>> T small(T servers) {
        servers.setMasterConnectionMinimumIdleSize(1).setMasterConnectionPoolSize(CONNECTIONS);
        return servers.setSlaveConnectionMinimumIdleSize(1).setSlaveConnectionPoolSize(CONNECTIONS);
    }

    private static BaseConfig<?> cluster(Config config, String[] words) {
        var servers = small(config.useClusterServers().setScanInterval(1000));
        for (String host : hosts(words[1])) {
            servers.addNodeAddress("redis://" + host);
        }
        for (int i = 2; i < words.length; i++) {
            if (words[i].startsWith("sharded=")) {
                servers.setShardedSubscriptionMode(ShardedSubscriptionMode.valueOf(words[i].substring(8)));
            }
        }
        return servers;
    }

    private static void apply(Config config, BaseConfig<?> servers, String option, String value) {
        switch (option) {
            case "protocol" -> config.setProtocol(Protocol.valueOf(value));
            case "watchdog" -> config.setLockWatchdogTimeout(Long.parseLong(value));
            case "fairWait" -> config.setFairLockWaitTimeout(Long.parseLong(value));
            case "codec" -> config.setCodec(codec(value));
            case "timeout" -> servers.setTimeout(Integer.parseInt(value));
            case "retryAttempts" -> servers.setRetryAttempts(Integer.parseInt(value));
            case "retryDelay" -> servers.setRetryDelay(new ConstantDelay(Duration.ofMillis(Long.parseLong(value))));
            case "slavesSync" -> config.setSlavesSyncTimeout(Long.parseLong(value));
            case "ping" -> servers.setPingConnectionInterval(Integer.parseInt(value));
            case "subscriptionTimeout" -> servers.setSubscriptionTimeout(Integer.parseInt(value));
            case "sharded" -> { }
            default -> throw new IllegalArgumentException("no option " + option);
        }
    }

    private static Codec codec(String name) {
        return switch (name) {
            case "string" -> StringCodec.INSTANCE;
            case "bytes" -> ByteArrayCodec.INSTANCE;
            case "kryo" -> new Kryo5Codec();
            default -> throw new IllegalArgumentException("no codec " + name);
        };
    }
}
