package leasehold.interop;

import java.net.URI;
import org.redisson.client.codec.ByteArrayCodec;
import org.redisson.client.codec.Codec;
import org.redisson.client.codec.StringCodec;
import org.redisson.codec.Kryo5Codec;
import org.redisson.config.BaseConfig;
import org.redisson.config.Config;
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
        BaseConfig<?> servers = url.startsWith("redis-cluster:") ? cluster(config, words) : single(config, url);
        for (int i = 2; i < words.length; i++) {
            String[] option = words[i].split("=", 2);
            apply(config, servers, option[0], option[1]);
        }
        return config;
    }

    private static BaseConfig<?> single(Config config, String url) {
        return config.useSingleServer().setAddress(url).setConnectionMinimumIdleSize(2).setConnectionPoolSize(CONNECTIONS);
    }

    private static BaseConfig<?> cluster(Config config, String[] words) {
        String[] hosts = URI.create(words[1]).getAuthority().split(",");
        var servers = config.useClusterServers().setScanInterval(1000);
        servers.setMasterConnectionMinimumIdleSize(1).setMasterConnectionPoolSize(CONNECTIONS);
        servers.setSlaveConnectionMinimumIdleSize(1).setSlaveConnectionPoolSize(CONNECTIONS);
        for (String host : hosts) {
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
